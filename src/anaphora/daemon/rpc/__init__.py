"""JSON-RPC 2.0: completions for apps and administration of the daemon, over HTTP and stdio.

    bytes ─protocol─▶ RpcRequest ─methods─▶ AppCall ─▶ its steps ─▶ result or error ─▶ bytes

`protocol` reads and writes messages, maps errors to their codes, and does no I/O. `service` checks
permissions, runs methods and streams deltas. `stdio` connects the lines of standard input and
output to a daemon's socket.
"""
