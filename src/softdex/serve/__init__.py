"""The server: models over HTTP, with batches, hot swap and limits. It needs the extra `serve`."""
