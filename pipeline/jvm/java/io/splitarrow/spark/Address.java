package io.splitarrow.spark;

import java.io.Serializable;

/**
 * The address of a server's data plane.
 *
 * @param wantData the tag of requests
 * @param keepAlive the tag of keep-alives, or null if the server sends none
 * @param tls the certificates; null for a connection without TLS
 */
record Address(String host, int port, long wantData, Long keepAlive, TlsFiles tls)
    implements Serializable {
  @Override
  public String toString() {
    return (tls == null ? "tcp://" : "tcp+tls://") + (host.contains(":") ? "[" + host + "]" : host) + ":" + port;
  }
}
