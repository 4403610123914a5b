package io.splitarrow.spark;

/** Text from a server or another process, for one line of an error. */
final class Text {
  private static final int MAX = 2000;

  private Text() {}

  /** Returns text without control characters, and not too long. */
  static String line(String text) {
    String plain = text.replaceAll("\\p{Cntrl}+", " ").strip();
    return plain.length() <= MAX ? plain : plain.substring(0, MAX) + "…";
  }
}
