def pad_head(head):
    return head
