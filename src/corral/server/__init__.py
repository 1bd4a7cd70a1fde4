"""The control plane's edge: HTTP, WebSockets, SSE; translates between the outside and the use cases."""
