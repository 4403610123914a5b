package io.splitarrow.spark;

import java.io.Serializable;
import java.util.List;

/**
 * A part of a dataset that one stream delivers.
 *
 * @param ordinal its position in the dataset
 * @param rows the number of rows before any filter; negative if unknown
 * @param replicas the servers that hold it, in order of preference
 * @param file the file to map where it exists; null if the plan names none
 */
record Shard(int ordinal, long rows, List<Replica> replicas, LocalFile file)
    implements Serializable {}
