// A share consumer with Kafka's Java client that takes a number of records and prints how fast, as
// rate_of_share in loads.py does with librdkafka. Run as a single source file.
//
// Arguments: bootstrap, group, topic of one partition, records, share.acknowledgement.mode. Prints
// records a second, from the first poll that returned records to the last confirmed
// acknowledgement. Only first deliveries count. The client verifies the CRC of each batch
// (check.crcs). Ends with exit code 1 on a failed acknowledgement, and on a record that came twice
// or not at all.

import java.time.Duration;
import java.util.BitSet;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class ShareLoad {
    private static final long STALL_NS = 60_000_000_000L;
    private final long count;
    private final BitSet offsets = new BitSet();
    private long taken, redelivered, confirmed, progress = -1, since;
    private Exception error;

    private ShareLoad(long count) {
        this.count = count;
    }

    public static void main(String[] arguments) throws Exception {
        boolean explicit = arguments[4].equals("explicit");
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("share.acknowledgement.mode", arguments[4]);
        try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(
                settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(arguments[2]));
            System.out.println(new ShareLoad(Long.parseLong(arguments[3])).run(consumer, explicit));
        }
    }

    private double run(KafkaShareConsumer<byte[], byte[]> consumer, boolean explicit)
            throws Exception {
        consumer.setAcknowledgementCommitCallback((found, failure) -> {
            if (failure != null) {
                error = failure;
            }
            for (Set<Long> some : found.values()) {
                confirmed += some.size();
            }
        });
        long began = 0, first = 0;
        while (taken < count) {
            ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofSeconds(1));
            for (ConsumerRecord<byte[], byte[]> record : records) {
                take(record);
                if (explicit) {
                    consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                }
            }
            if (began == 0 && taken > 0) {
                began = System.nanoTime();
                first = taken;
            }
            if (explicit && !records.isEmpty()) {
                consumer.commitAsync();
            }
            check(taken);
        }
        consumer.commitSync(Duration.ofSeconds(10)).forEach((partition, failure) ->
            failure.ifPresent(some -> error = some));
        while (confirmed < count + redelivered) {
            consumer.poll(Duration.ofMillis(10));
            check(confirmed);
        }
        double rate = (taken - first) * 1e9 / (System.nanoTime() - began);
        check(confirmed + 1);
        return rate;
    }

    private void take(ConsumerRecord<byte[], byte[]> record) {
        if (record.deliveryCount().orElse((short) 0) != 1) {
            redelivered++;
            return;
        }
        if (offsets.get((int) record.offset())) {
            throw new IllegalStateException("offset " + record.offset() + " came twice");
        }
        offsets.set((int) record.offset());
        taken++;
    }

    /** Fails after an error, and when a count has not moved for a minute. */
    private void check(long now) throws Exception {
        if (error != null) {
            throw error;
        }
        if (now != progress) {
            progress = now;
            since = System.nanoTime();
        } else if (System.nanoTime() - since > STALL_NS) {
            throw new IllegalStateException(now + " of " + count + " records, and none more");
        }
    }
}
