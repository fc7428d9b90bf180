"""The transport over aiohttp; the one folder that knows the HTTP library.

One pool of kept connections, made in the loop of the first request. No cookies, no redirects (a 3xx
is an answer like others), no proxies from the environment.

Connections are aiohttp's (`TCPConnector`: names, TLS, proxies, the pool), and so is the parser of
answers. Its session is left out: the request is written here (`route`, `exchange`), and so the time
limits, the bounds and the errors are ours (docs/decisions/0014).

What goes wrong is `errors.Transport`; its `phase` tells how far the request came:

    connect     no connection: a name, a port, a certificate, a proxy, or none free in time
    send        the connection was lost while the request was being written; or it was a kept one
                that the server had closed meanwhile: nobody has seen the request, sending it again
                is safe. For what may be repeated anyway (GET, DELETE) that is done here; for POST
                the retry policy does
    first_byte  the request is out, and no answer's head came, or none that is HTTP
    body        an answer began and broke off, cannot be decoded, or is longer than was asked for
    idle        an answer began and fell silent

Where sending again cannot help (a certificate, a size) the error says `retryable = False`. Messages
name the host and what happened: no path, no header, no byte of a body.
"""

from __future__ import annotations

from .transport import AiohttpTransport

__all__ = ["AiohttpTransport"]
