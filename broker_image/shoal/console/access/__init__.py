"""Who may use the console, and with whose rights: logins, sessions, limits of connections."""
