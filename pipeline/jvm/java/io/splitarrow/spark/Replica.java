package io.splitarrow.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;

/**
 * A server that holds a shard, with the ticket that requests it there.
 *
 * @param control the address of the control plane that issued the ticket
 * @param addresses the addresses of its data plane, in order of preference
 * @param version the version of the dataset at this server; empty if unknown
 * @param shard the index of the shard at this server; null if the dataset has one shard there
 */
record Replica(
    String control, List<Address> addresses, byte[] ticket, String version, Integer shard)
    implements Serializable {

  static Replica of(JsonNode node) throws IOException {
    List<Address> addresses = new ArrayList<>();
    for (JsonNode address : node.get("addresses")) {
      JsonNode keepAlive = address.get("keep_alive");
      addresses.add(
          new Address(
              address.get("host").asText(),
              address.get("port").asInt(),
              Long.parseUnsignedLong(address.get("want_data").asText()),
              keepAlive == null || keepAlive.isNull()
                  ? null
                  : Long.parseUnsignedLong(keepAlive.asText()),
              tlsOf(address.path("tls"))));
    }
    JsonNode shard = node.get("shard");
    return new Replica(
        node.get("control").asText(),
        new ArrayList<>(addresses),
        node.get("ticket").binaryValue(),
        node.get("version").asText(),
        shard == null || shard.isNull() ? null : shard.asInt());
  }

  private static TlsFiles tlsOf(JsonNode node) {
    return !node.isObject()
        ? null
        : new TlsFiles(
            node.path("ca").asText(null),
            node.path("cert").asText(null),
            node.path("key").asText(null),
            node.path("server_name").asText(null));
  }

  /** Returns whether only the server can write tickets. */
  boolean isSigned() {
    return ticket.length >= 4
        && ticket[0] == 's'
        && ticket[1] == 'a'
        && ticket[2] == '1'
        && ticket[3] == '.';
  }

  /**
   * Returns an unsigned ticket for the rows after an offset.
   *
   * @param limit the largest number of rows, or a negative number for all
   */
  byte[] ticketFrom(long offset, long limit) throws IOException {
    if (offset == 0 && limit < 0) {
      return ticket;
    }
    JsonNode parsed =
        ticket.length > 0 && ticket[0] == '{' ? Json.MAPPER.readTree(ticket) : null;
    ObjectNode fields = Json.MAPPER.createObjectNode();
    if (parsed instanceof ObjectNode object) {
      fields = object;
    } else {
      fields.put("dataset", new String(ticket, java.nio.charset.StandardCharsets.UTF_8));
    }
    if (offset > 0) {
      fields.put("offset", offset);
    }
    if (limit >= 0) {
      fields.put("limit", limit);
    }
    return Json.MAPPER.writeValueAsBytes(fields);
  }

  @Override
  public String toString() {
    return control; // the ticket is a secret
  }

  static ArrayNode toJson(List<String> names) {
    ArrayNode array = Json.MAPPER.createArrayNode();
    names.forEach(array::add);
    return array;
  }
}
