package io.splitarrow.spark;

import java.io.Serializable;

/**
 * The file of a shard of a published dataset, which never changes once it is published.
 *
 * @param path the absolute path, in the folder that the user named
 * @param bytes the length of the file in the manifest
 */
record LocalFile(String path, long bytes) implements Serializable {}
