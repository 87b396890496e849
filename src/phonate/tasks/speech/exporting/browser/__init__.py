"""A voice as a page that speaks in the browser, without a server."""
