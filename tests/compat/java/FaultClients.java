// Apache Kafka's Java clients for runs with faults: tests/support/kafka/java_clients.py starts this and reads it.
//
// Arguments: bootstrap servers, topic, number of partitions, group protocol (classic or consumer),
// then one role and name per client, such as writer:w1, reader:g1, sharer:s1. All clients share one
// process, each with a thread. Standard input names the clients to stop, one a line; its end stops
// all. Each line of standard output is a JSON object: the client ("c"), the event ("e") and
// when ("t"), in seconds of the monotonic clock.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.StringJoiner;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedLeaderEpochException;
import org.apache.kafka.common.errors.InvalidRecordStateException;
import org.apache.kafka.common.errors.InvalidShareSessionEpochException;
import org.apache.kafka.common.errors.NotLeaderOrFollowerException;
import org.apache.kafka.common.errors.ShareSessionNotFoundException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class FaultClients {
    private static final int PACE_MS = 5;
    private static final Map<String, CountDownLatch> STOPS = new ConcurrentHashMap<>();
    private static String bootstrap;
    private static String topic;
    private static int partitions;
    private static String protocol;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        topic = arguments[1];
        partitions = Integer.parseInt(arguments[2]);
        protocol = arguments[3];
        for (String word : List.of(arguments).subList(4, arguments.length)) {
            String[] parts = word.split(":");
            STOPS.put(parts[1], new CountDownLatch(1));
            new Thread(() -> run(parts[0], parts[1]), parts[1]).start();
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String name = lines.readLine(); name != null; name = lines.readLine()) {
            STOPS.get(name).countDown();
        }
        STOPS.values().forEach(CountDownLatch::countDown);
    }

    private static void run(String role, String name) {
        try {
            switch (role) {
                case "writer" -> write(name);
                case "reader" -> read(name);
                case "sharer" -> share(name);
                default -> throw new IllegalArgumentException(role);
            }
            tell(name, "ended", "");
        } catch (Throwable error) {
            tell(name, "died", ", \"error\": " + quoted(error.toString()));
        }
    }

    private static Properties settings() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        // A frozen broker keeps its connections open; this bounds the wait for its responses.
        settings.put("request.timeout.ms", "6000");
        return settings;
    }

    private static boolean stops(String name) {
        return STOPS.get(name).getCount() == 0;
    }

    private static void write(String name) throws InterruptedException {
        Properties settings = settings();
        settings.put("acks", "all");
        settings.put("enable.idempotence", "true");
        settings.put("linger.ms", "1");
        settings.put("delivery.timeout.ms", "120000");
        StringSerializer plain = new StringSerializer();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, plain, plain)) {
            for (int n = 0; !stops(name); n++) {
                String value = name + "-" + n;
                producer.send(
                    new ProducerRecord<>(topic, n % partitions, null, value), (where, error) -> {
                        String fields = ", \"v\": " + quoted(value);
                        if (error == null) {
                            tell(name, "sent", fields + at(where.partition(), where.offset()));
                        } else {
                            tell(name, "refused", fields + ", \"error\": " + quoted("" + error));
                        }
                    });
                Thread.sleep(PACE_MS);
            }
        }
    }

    private static void read(String name) {
        Properties settings = settings();
        settings.put("group.id", "java-readers");
        settings.put("group.protocol", protocol);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        if (protocol.equals("classic")) {
            settings.put("session.timeout.ms", "10000");
        }
        StringDeserializer plain = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, plain, plain)) {
            consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> revoked) { }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
                    assigned(name, consumer, assigned);
                }
            });
            while (!stops(name)) {
                try {
                    readSome(name, consumer);
                } catch (KafkaException error) {
                    tell(name, "error", ", \"error\": " + quoted(error.toString()));
                }
            }
        }
    }

    /** Report the position at which the member resumes: the group's commits. */
    private static void assigned(
            String name, KafkaConsumer<String, String> consumer,
            Collection<TopicPartition> partitions) {
        String asked = ", \"asked\": " + now();
        tell(name, "generation", "");
        try {
            consumer.committed(new HashSet<>(partitions)).forEach((where, found) ->
                tell(name, "assigned",
                    asked + at(where.partition(), found == null ? 0 : found.offset())));
        } catch (KafkaException error) {
            tell(name, "error", ", \"error\": " + quoted(error.toString()));
        }
    }

    private static void readSome(String name, KafkaConsumer<String, String> consumer) {
        Map<TopicPartition, OffsetAndMetadata> reached = new HashMap<>();
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
            tell(name, "read", at(record.partition(), record.offset())
                + ", \"v\": " + quoted(record.value()));
            reached.put(new TopicPartition(topic, record.partition()),
                new OffsetAndMetadata(record.offset() + 1));
        }
        if (!reached.isEmpty()) {
            consumer.commitSync(reached, Duration.ofSeconds(20));
            reached.forEach((where, to) ->
                tell(name, "committed", at(where.partition(), to.offset())));
        }
    }

    private static void share(String name) {
        Properties settings = settings();
        settings.put("group.id", "java-sharers");
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("max.poll.records", "100");
        StringDeserializer plain = new StringDeserializer();
        try (KafkaShareConsumer<String, String> consumer =
                new KafkaShareConsumer<>(settings, plain, plain)) {
            consumer.subscribe(List.of(topic));
            while (!stops(name)) {
                try {
                    settle(name, consumer);
                } catch (KafkaException error) {
                    tell(name, "error", ", \"error\": " + quoted(error.toString()));
                }
            }
        }
    }

    /** One poll: accept most records, reject some, and release some once; then commit. */
    private static void settle(String name, KafkaShareConsumer<String, String> consumer) {
        String since = ", \"since\": " + now();
        ConsumerRecords<String, String> polled = consumer.poll(Duration.ofMillis(200));
        Map<Integer, StringJoiner> acknowledgements = new HashMap<>();
        for (ConsumerRecord<String, String> record : polled) {
            int count = record.deliveryCount().orElse((short) 0);
            tell(name, "got", since + at(record.partition(), record.offset())
                + ", \"n\": " + count + ", \"v\": " + quoted(record.value()));
            AcknowledgeType acknowledgement = acknowledgement(record.offset(), count);
            consumer.acknowledge(record, acknowledgement);
            acknowledgements.computeIfAbsent(record.partition(), p -> new StringJoiner(", ", "{", "}"))
                .add("\"" + record.offset() + "\": " + quoted(acknowledgement.toString()));
        }
        if (acknowledgements.isEmpty()) {
            return;
        }
        String begun = ", \"since\": " + now();
        Map<TopicIdPartition, Optional<KafkaException>> done = new HashMap<>();
        try {
            done = consumer.commitSync(Duration.ofSeconds(10));
        } finally {
            Map<Integer, String> results = new HashMap<>();
            done.forEach((where, error) -> results.put(where.partition(), result(error)));
            acknowledgements.forEach((partition, sent) -> tell(name, "settled", begun
                + ", \"p\": " + partition + ", \"acknowledgements\": " + sent
                + ", \"ok\": " + results.getOrDefault(partition, "null")));
        }
    }

    private static AcknowledgeType acknowledgement(long offset, int deliveryCount) {
        if (offset % 10 == 3 && deliveryCount == 1) {
            return AcknowledgeType.RELEASE;
        }
        return offset % 10 == 7 ? AcknowledgeType.REJECT : AcknowledgeType.ACCEPT;
    }

    /** Whether an acknowledgement was applied: true, false, or null if its response was lost. */
    private static String result(Optional<KafkaException> error) {
        if (error.isEmpty()) {
            return "true";
        }
        boolean refused = error.get() instanceof InvalidRecordStateException
            || error.get() instanceof ShareSessionNotFoundException
            || error.get() instanceof InvalidShareSessionEpochException
            || error.get() instanceof NotLeaderOrFollowerException
            || error.get() instanceof FencedLeaderEpochException;
        return refused ? "false" : "null";
    }

    private static String at(int partition, long offset) {
        return ", \"p\": " + partition + ", \"o\": " + offset;
    }

    private static double now() {
        return System.nanoTime() / 1e9;
    }

    private static String quoted(String text) {
        return "\"" + text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", " ") + "\"";
    }

    private static synchronized void tell(String name, String event, String fields) {
        System.out.println("{\"c\": \"" + name + "\", \"e\": \"" + event + "\", \"t\": " + now()
            + fields + "}");
    }
}
