package io.splitarrow.spark;

import org.apache.spark.unsafe.Platform;

/** Checks of the offsets of strings and lists. */
final class Offsets {
  private static final Buffer ZERO = zero();

  private Offsets() {}

  private static Buffer zero() {
    long address = Platform.allocateMemory(8);
    Platform.putLong(null, address, 0);
    return new Buffer(address, 8);
  }

  /** Returns offsets of 32 bits that never decrease and end within a limit. */
  static Buffer check32(Buffer offsets, int length, long limit) throws ReadFailure {
    if (length == 0 && offsets.length() == 0) {
      return ZERO; // Arrow allows a missing buffer for an empty array
    }
    offsets.require(length + 1L, 4);
    int previous = offsets.int32(0);
    boolean valid = previous >= 0;
    for (int row = 1; row <= length; row++) {
      int offset = offsets.int32(row);
      valid &= offset >= previous;
      previous = offset;
    }
    return require(valid && previous <= limit, offsets);
  }

  /** Returns offsets of 64 bits that never decrease and end within a limit. */
  static Buffer check64(Buffer offsets, int length, long limit) throws ReadFailure {
    if (length == 0 && offsets.length() == 0) {
      return ZERO;
    }
    offsets.require(length + 1L, 8);
    long previous = offsets.int64(0);
    boolean valid = previous >= 0;
    for (int row = 1; row <= length; row++) {
      long offset = offsets.int64(row);
      valid &= offset >= previous;
      previous = offset;
    }
    return require(valid && previous <= limit, offsets);
  }

  private static Buffer require(boolean valid, Buffer offsets) throws ReadFailure {
    if (!valid) {
      throw ReadFailure.invalid("the offsets of an array decrease or lead outside of its data");
    }
    return offsets;
  }
}
