"""Logins, access control lists, delegation tokens and SCRAM users."""
