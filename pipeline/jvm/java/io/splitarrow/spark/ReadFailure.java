package io.splitarrow.spark;

import java.io.IOException;

/** A read that failed. The message states the problem in one line, and contains no ticket. */
final class ReadFailure extends IOException {
  private static final long serialVersionUID = 1L;

  /** What a reader may do about a failure. */
  enum Kind {
    /** Another attempt may succeed: the connection broke, or the server does not respond. */
    TRANSIENT,
    /** The server refuses, and another server may not. */
    REFUSED,
    /** The ticket has expired or was used; a new one may be accepted. */
    TICKET,
    /** The data or the protocol is wrong. Another attempt would hide it. */
    FATAL
  }

  final Kind kind;

  ReadFailure(Kind kind, String message) {
    super(message);
    this.kind = kind;
  }

  static ReadFailure broken(String message) {
    return new ReadFailure(Kind.TRANSIENT, message);
  }

  static ReadFailure invalid(String message) {
    return new ReadFailure(Kind.FATAL, message);
  }

  /** Returns the failure that a server reported, with the name of a gRPC status. */
  static ReadFailure reported(String code, String message) {
    Kind kind =
        switch (code) {
          case "UNAVAILABLE", "ABORTED", "DEADLINE_EXCEEDED" -> Kind.TRANSIENT;
          case "UNAUTHENTICATED" -> Kind.TICKET;
          default -> Kind.REFUSED;
        };
    return new ReadFailure(kind, message + " (" + code + ")");
  }
}
