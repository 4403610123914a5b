package io.splitarrow.spark;

import com.fasterxml.jackson.databind.ObjectMapper;

/** JSON, with the library that Spark brings. */
final class Json {
  static final ObjectMapper MAPPER = new ObjectMapper();

  private Json() {}
}
