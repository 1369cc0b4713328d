"""The explorer: a page on 127.0.0.1 that shows what the library computes. Only `pellucid explore` imports it."""
