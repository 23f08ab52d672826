"""Dead letters: their format, their topics, and sending them back."""
