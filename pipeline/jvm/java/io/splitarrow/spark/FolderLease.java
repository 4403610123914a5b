package io.splitarrow.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.Serializable;
import java.lang.ref.Cleaner;

/**
 * Keeps the version of a folder that queries read from being removed, as a daemon would.
 *
 * <p>The planner has a lock on the version. It releases the lock when no frame and no plan on the
 * driver refers to this object, or when the driver ends. The copies in tasks do nothing.
 */
final class FolderLease implements Serializable {
  private static final long serialVersionUID = 1L;
  private static final Cleaner CLEANER = Cleaner.create();

  /** Takes over the lock that the planner has acquired for the answer to a request. */
  static FolderLease of(String python, ObjectNode release) {
    FolderLease lease = new FolderLease();
    CLEANER.register(lease, new Release(python, release));
    return lease;
  }

  private record Release(String python, ObjectNode request) implements Runnable {
    @Override
    public void run() {
      try {
        Planner.call(python, request);
      } catch (IllegalArgumentException error) {
        // The planner died, and its locks with it.
      }
    }
  }
}
