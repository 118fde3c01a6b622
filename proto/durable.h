/*
 * The name of a new file, after a power failure: a file that was synced is whole, but whether a folder has it
 * is written apart, and only a sync of the folder says when.
 */
#ifndef CKKS_PROTO_DURABLE_H
#define CKKS_PROTO_DURABLE_H

/* durable_folder waits until the names in a folder are on the disk; durable_folder_at takes an open one. 0,
 * also where that cannot be asked for (a file system that syncs no folders, a folder that its user may not
 * read), which is as good as it gets; else errno's number, EIO say: the names may not survive. Blocks. */
int durable_folder(const char *path);
int durable_folder_at(int folder);

#endif
