"""``sendonce demo``: a bookstore's mails on embedded servers that misbehave, and an independent count of the copies.

``shop``
    The bookstore: its own tables, and mails enqueued in its transactions.
``world``
    Servers, the worker process that is killed and started again, and the moments at which that happens.
``play``
    What happens, in order.
``verdict``
    What must be true in the end, judged by the store's rows and the copies in the mailbox alone.
``show``
    Progress, and the table at the end.
"""
