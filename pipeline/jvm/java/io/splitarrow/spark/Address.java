package io.splitarrow.spark;

import java.io.Serializable;

/**
 * The address of a server's data plane.
 *
 * @param wantData the tag of requests
 * @param keepAlive the tag of keep-alives, or null if the server sends none
 */
record Address(String host, int port, long wantData, Long keepAlive) implements Serializable {
  @Override
  public String toString() {
    return "tcp://" + (host.contains(":") ? "[" + host + "]" : host) + ":" + port;
  }
}
