"""The tables of configs, as text that `config_keys` parses: name, type, default, check, meaning."""
