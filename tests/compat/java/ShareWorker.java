// A member of a share group with Kafka's Java client, as tests/support/workers/share_worker.py is one with
// librdkafka: the same arguments, and the same JSON objects on standard output. Ends when standard
// input does, or is killed.
//
// Arguments: bootstrap, group, topic, seed, longest work on a record in milliseconds, the part of
// records that is released, and optionally share.acquire.mode.

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Random;
import java.util.StringJoiner;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class ShareWorker {
    private static volatile boolean stopped = false;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("max.poll.records", "20");
        if (arguments.length > 6) {
            settings.put("share.acquire.mode", arguments[6]);
        }
        Random random = new Random(Long.parseLong(arguments[3]));
        double workMs = Double.parseDouble(arguments[4]);
        double released = Double.parseDouble(arguments[5]);
        Thread listener = new Thread(ShareWorker::waitForTheEnd);
        listener.setDaemon(true);
        listener.start();
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(
                settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(arguments[2]));
            tell("joined", "");
            while (!stopped) {
                settle(consumer, random, workMs, released);
            }
        }
    }

    private static void waitForTheEnd() {
        try {
            while (System.in.read() >= 0) { }
        } catch (java.io.IOException ended) {
            // Treat an error as the end of input.
        }
        stopped = true;
    }

    /** Poll once, choose an acknowledgement for each record at random, and commit. */
    private static void settle(
            KafkaShareConsumer<String, String> consumer, Random random, double workMs,
            double released) throws InterruptedException {
        double since = now();
        ConsumerRecords<String, String> polled = consumer.poll(Duration.ofMillis(300));
        if (polled.isEmpty()) {
            tell("idle", ", \"since\": " + since);
            return;
        }
        StringJoiner acknowledgements = new StringJoiner(", ");
        for (ConsumerRecord<String, String> record : polled) {
            String where = record.partition() + ", " + record.offset();
            int count = record.deliveryCount().orElse((short) 0);
            tell("got", ", \"where\": [" + where + "], \"count\": " + count + ", \"value\": \""
                + record.value() + "\"");
            if (workMs > 0) {
                Thread.sleep((long) (random.nextDouble() * workMs));
            }
            boolean release = random.nextDouble() < released;
            consumer.acknowledge(record, release ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
            acknowledgements.add("[" + where + ", " + count + ", \"" + (release ? "RELEASE" : "ACCEPT") + "\"]");
        }
        tell("begin", ", \"acknowledgements\": [" + acknowledgements + "]");
        StringJoiner codes = new StringJoiner(", ");
        Map<TopicIdPartition, Optional<KafkaException>> done = consumer.commitSync();
        done.forEach((where, error) ->
            codes.add("\"" + where.partition() + "\": " + (error.isPresent() ? 1 : 0)));
        tell("end", ", \"codes\": {" + codes + "}");
    }

    private static double now() {
        return System.nanoTime() / 1e9;
    }

    private static void tell(String event, String fields) {
        System.out.println("{\"t\": " + now() + ", \"e\": \"" + event + "\"" + fields + "}");
        System.out.flush();
    }
}
