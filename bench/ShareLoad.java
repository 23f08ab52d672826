// A share consumer with Kafka's Java client that takes a number of records and says how fast, as
// rate_of_share in loads.py does with librdkafka. Run as a single source file.
//
// Arguments: bootstrap, group, topic, records, share.acknowledgement.mode. Prints records a second
// from the first records on, so that joining is left out.

import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class ShareLoad {
    public static void main(String[] arguments) {
        long count = Long.parseLong(arguments[3]);
        boolean explicit = arguments[4].equals("explicit");
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("share.acknowledgement.mode", arguments[4]);
        try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(
                settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(arguments[2]));
            long began = 0, first = 0, taken = 0;
            while (taken < count) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofSeconds(1));
                taken += records.count();
                if (began == 0 && taken > 0) {
                    began = System.nanoTime();
                    first = taken;
                }
                if (explicit && !records.isEmpty()) {
                    for (ConsumerRecord<byte[], byte[]> record : records) {
                        consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                    }
                    consumer.commitAsync();
                }
            }
            System.out.println((taken - first) * 1e9 / (System.nanoTime() - began));
        }
    }
}
