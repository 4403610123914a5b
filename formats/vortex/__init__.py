"""Vortex IPC: encoded arrays in messages.

Only `compression`, `decoding` and `encoding` need the extra ``vortex``.

- `message`: `Message` (its header, and the pieces of its body), `build_message`, `encode_message`,
  `read_header`, `read_parts` for the parts that vortex-data encodes, and `summarize_header` for
  streams on the wire.
- `reader`: `read_messages` over a mapped stream, `StreamReader` for pieces of any size, and
  `HeaderReader` for files whose bodies are not read.
- `dtype`: `read_dtype`, which returns the `DType` of all arrays of a stream.
- `checker`: `check_array`, before anything decodes. `array_body` and `array_table` have the parts.
- `compression`: `decode_body`, which makes a checked body one that vortex-data reads: without LZ4,
  and with the table last.
- `storage`: `StorageConverter`, from record batches to what Vortex holds and back, by the types of
  `storage_types`.
- `encoding`: `ArrayEncoder`, from record batches to messages.
- `schema_message`: the mark of a stream with arrays on the wire.
- `decoding`: `encode_array` returns the messages of an array of vortex-data. `ArrayDecoder` checks
  and decodes messages in this process, as `splitarrow.isolation.array_decoder.IsolatedDecoder` does
  in a child process, for data from strangers.
- `file_types`: the types of record batches in a Vortex file, which has no Arrow schema beside it.
- `plain_types`: the Arrow types of Vortex data that comes without an Arrow schema.
- `limits`: `VortexLimits`.
"""
