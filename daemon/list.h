/*
 * Intrusive doubly linked lists. A link is in one list or, pointing at itself, in none; counts are walked,
 * never kept beside. Not thread-safe.
 */
#ifndef CKKSD_LIST_H
#define CKKSD_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct list_node {
    struct list_node *next, *prev;
} list_node;

/* types and loop variables cannot stand in parentheses */
/* NOLINTBEGIN(bugprone-macro-parentheses) */
#define LIST_ENTRY(link, type, member) ((type *)(void *)((char *)(link)-offsetof(type, member)))
#define LIST_EACH(item, head)          for (list_node *item = (head)->next; item != (head); item = item->next)
/* the body may remove and free `item` */
#define LIST_EACH_SAFE(item, head)                                                                           \
    for (list_node *item = (head)->next, *item##_next = item->next; item != (head);                          \
         item = item##_next, item##_next = item->next)
/* NOLINTEND(bugprone-macro-parentheses) */

static inline void list_init(list_node *l) {
    l->next = l->prev = l;
}
static inline bool list_is_empty(const list_node *head) {
    return head->next == head;
}
static inline void list_insert_before(list_node *at, list_node *link) {
    link->next = at, link->prev = at->prev;
    at->prev->next = link, at->prev = link;
}
static inline void list_append(list_node *head, list_node *link) {
    list_insert_before(head, link);
}
static inline void list_prepend(list_node *head, list_node *link) {
    list_insert_before(head->next, link);
}
/* list_remove leaves the link in no list; safe to repeat on an initialised link. */
static inline void list_remove(list_node *link) {
    /* the analyser does not see that a removed link cannot be reached from its list any more */
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
    link->prev->next = link->next, link->next->prev = link->prev;
    list_init(link);
}
static inline uint32_t list_count(const list_node *head) {
    uint32_t count = 0;
    for (const list_node *l = head->next; l != head; l = l->next) count++;
    return count;
}

#endif
