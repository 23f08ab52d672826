"""Members of share groups: acquire, acknowledge, renew and release."""
