"""The metadata quorum: Raft in the form of KRaft (KIP-595, 630, 853, 996), free of I/O.

`raft.Raft` is the replica: one event in, one `events.Effects` out. `store.QuorumStore` carries out
effects on a log and its directory. Neither uses a socket, a clock or a random number.
"""
