"""What all our servers share: a server in a thread, Host and Origin checks, bodies read within
limits, errors in the caller's format, and a graceful stop.

    app = ServedApp(handler, HostGuard("127.0.0.1", hint="start it with --allow-host NAME"))
    with running(app, host="127.0.0.1") as address:
        print(address.url)

A handler is any object with two methods: `handle(exchange)` reads a request and answers it, and
`error(exchange, problem)` writes an error in the format of the request's wire (see `app.Handler`).
Emulator and proxy are served by Granian, which comes with their extras and is imported when a
server starts; the daemon by `listening`.
"""
