"""Reading over HTTP: the transport of last resort, which also passes proxies."""
