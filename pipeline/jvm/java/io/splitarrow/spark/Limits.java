package io.splitarrow.spark;

/** The limits of what a server can make a reader accept; see "What a reader refuses" in wire.md. */
final class Limits {
  static final int METADATA_BYTES = 16 << 20;
  static final int PENDING_MESSAGES = 4096;
  static final int DUPLICATES = 65536;
  static final int BUFFERS = 1 << 20;
  static final int FIELDS = 1 << 16;
  static final int NESTING = 64;
  static final int FAILURE_BYTES = 64 << 10;

  private Limits() {}
}
