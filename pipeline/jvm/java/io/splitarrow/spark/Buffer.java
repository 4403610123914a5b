package io.splitarrow.spark;

import org.apache.spark.unsafe.Platform;

/** A range of bytes outside of the heap: one buffer of an Arrow array. */
record Buffer(long address, long length) {
  static final Buffer EMPTY = new Buffer(0, 0);

  /** Returns this buffer if it holds a number of elements, and refuses it otherwise. */
  Buffer require(long count, int width) throws ReadFailure {
    if (count < 0 || count > length / width) {
      throw ReadFailure.invalid(
          "a buffer of " + length + " bytes is too short for " + count + " values of " + width);
    }
    return this;
  }

  /** Returns this buffer if it holds a number of bits. */
  Buffer requireBits(long count) throws ReadFailure {
    return require((count + 7) / 8, 1);
  }

  boolean bit(long index) {
    return (Platform.getByte(null, address + (index >> 3)) >> (index & 7) & 1) != 0;
  }

  byte int8(long index) {
    return Platform.getByte(null, address + index);
  }

  short int16(long index) {
    return Platform.getShort(null, address + 2 * index);
  }

  int int32(long index) {
    return Platform.getInt(null, address + 4 * index);
  }

  long int64(long index) {
    return Platform.getLong(null, address + 8 * index);
  }

  float float32(long index) {
    return Platform.getFloat(null, address + 4 * index);
  }

  double float64(long index) {
    return Platform.getDouble(null, address + 8 * index);
  }
}
