"""An HTTP server for models that make speech: OpenAI's protocol, cloning with uploaded voices, a page, and metrics.

`server.serve` runs it; `server.create_app` makes the ASGI application. Needs the extra `phonate[serve]`.
"""
