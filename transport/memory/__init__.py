"""Files, mapped regions and sealed memory: the memory that datasets are sent from.

Each module owns one kind of memory, and each object frees what it owns when it is garbage
collected. Callers free nothing explicitly.

=========================  ===========================================  =========================
object                     owns                                         keeps alive
=========================  ===========================================  =========================
`files.SourceFile`         the descriptor of a file open for reading    nothing
`files.FileSpan`           nothing                                      its `SourceFile`
`sealed.SealedMemory`      memory without a name that never changes     nothing
`mapped_region             the mapping of a file or of sealed memory    what transports registered
.MappedRegion`             into this process                            of it
a buffer of a region       nothing                                      the region, and its lease
=========================  ===========================================  =========================

A mapped file may be written to by another process. Whoever guards the file (on a server,
`splitarrow.server.shm`) revokes it first: the region then replaces the pages that buffers still use
by copies at the same addresses, with the system calls in `pages`.
"""
