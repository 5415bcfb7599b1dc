"""Where sessions lie that several machines share: one port, and a store in memory, in files and in PostgreSQL."""
