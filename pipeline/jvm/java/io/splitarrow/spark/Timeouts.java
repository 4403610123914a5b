package io.splitarrow.spark;

import java.io.Serializable;

/** The longest time to connect, and without data from a server, in milliseconds. */
record Timeouts(int connectMillis, long stallMillis) implements Serializable {}
