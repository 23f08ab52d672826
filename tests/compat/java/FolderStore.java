import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/** Kafka's remote storage in the folder of the config `dir`: a file for each segment and index. */
public final class FolderStore implements RemoteStorageManager {
    private static final String SEGMENT = "SEGMENT";
    private Path folder;

    @Override
    public void configure(Map<String, ?> configs) {
        folder = Path.of((String) configs.get("dir"));
    }

    @Override
    public Optional<CustomMetadata> copyLogSegmentData(
            RemoteLogSegmentMetadata segment, LogSegmentData data) throws RemoteStorageException {
        try {
            Files.createDirectories(folder);
            Files.copy(data.logSegment(), find(segment, SEGMENT));
            Files.copy(data.offsetIndex(), find(segment, IndexType.OFFSET.name()));
            Files.copy(data.timeIndex(), find(segment, IndexType.TIMESTAMP.name()));
            Files.copy(data.producerSnapshotIndex(), find(segment, IndexType.PRODUCER_SNAPSHOT.name()));
            if (data.transactionIndex().isPresent())
                Files.copy(data.transactionIndex().get(), find(segment, IndexType.TRANSACTION.name()));
            ByteBuffer epochs = data.leaderEpochIndex();
            byte[] bytes = new byte[epochs.remaining()];
            epochs.get(bytes);
            Files.write(find(segment, IndexType.LEADER_EPOCH.name()), bytes);
            return Optional.empty();
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start)
            throws RemoteStorageException {
        return fetchLogSegment(segment, start, Integer.MAX_VALUE - 1);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start, int last)
            throws RemoteStorageException {
        byte[] whole = read(segment, SEGMENT);
        int end = Math.min(whole.length, last + 1);
        return new ByteArrayInputStream(whole, start, Math.max(0, end - start));
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata segment, IndexType type)
            throws RemoteStorageException {
        return new ByteArrayInputStream(read(segment, type.name()));
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata segment)
            throws RemoteStorageException {
        try {
            Files.deleteIfExists(find(segment, SEGMENT));
            for (IndexType type : IndexType.values())
                Files.deleteIfExists(find(segment, type.name()));
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
    }

    @Override
    public void close() {}

    private byte[] read(RemoteLogSegmentMetadata segment, String kind)
            throws RemoteStorageException {
        Path file = find(segment, kind);
        if (!Files.exists(file))
            throw new RemoteResourceNotFoundException(file + " does not exist");
        try {
            return Files.readAllBytes(file);
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
    }

    private Path find(RemoteLogSegmentMetadata segment, String kind) {
        return folder.resolve(segment.remoteLogSegmentId().id() + "." + kind);
    }
}
