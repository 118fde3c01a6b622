/*
 * Intrusive doubly linked lists. A link is in one list or, pointing at itself, in none; counts are walked,
 * never kept beside. Not thread-safe.
 */
#ifndef CKKSD_LIST_H
#define CKKSD_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct list {
    struct list *next, *prev;
} list;

#define LIST_ENTRY(link, type, member) ((type *)(void *)((char *)(link)-offsetof(type, member)))
#define LIST_EACH(item, head)          for (list *item = (head)->next; item != (head); item = item->next)
/* the body may remove and free `item` */
#define LIST_EACH_SAFE(item, head)                                                                           \
    for (list *item = (head)->next, *item##_next = item->next; item != (head);                               \
         item = item##_next, item##_next = item->next)

static inline void list_init(list *l) {
    l->next = l->prev = l;
}
static inline bool list_is_empty(const list *head) {
    return head->next == head;
}
static inline void list_insert_before(list *at, list *link) {
    link->next = at, link->prev = at->prev;
    at->prev->next = link, at->prev = link;
}
static inline void list_append(list *head, list *link) {
    list_insert_before(head, link);
}
static inline void list_prepend(list *head, list *link) {
    list_insert_before(head->next, link);
}
/* list_remove leaves the link in no list; safe to repeat on an initialised link. */
static inline void list_remove(list *link) {
    link->prev->next = link->next, link->next->prev = link->prev;
    list_init(link);
}
static inline uint32_t list_count(const list *head) {
    uint32_t count = 0;
    for (const list *l = head->next; l != head; l = l->next) count++;
    return count;
}

#endif
