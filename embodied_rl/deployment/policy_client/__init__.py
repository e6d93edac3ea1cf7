"""A client of a policy server, and the messages between them. Imports no torch."""
