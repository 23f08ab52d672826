"""Record batches as bytes (magic 2): header, CRC, rebasing, records, compression."""
