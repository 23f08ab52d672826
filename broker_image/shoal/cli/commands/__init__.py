"""The commands, a module each, and the parts of those that are too long for one."""
