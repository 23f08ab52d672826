// Applications of Kafka Streams in several shapes, for tests/compat/clients/java/test_streams_groups.py.
//
// Arguments: the shape, the prefix of its topics (PREFIX-left, PREFIX-right and PREFIX-out), and
// settings of the application as name=value. Nothing is cached, so every update is written. For
// several shapes with commas between them, an application of each runs. PREFIX-SHAPE is then its id
// and the prefix of its topics.
// Prints each change of state as `state NAME` and the error of a thread as `died CLASS: MESSAGE`.
// The shape `repartition` fails at the value `fatal`, and then requests the shutdown of all
// instances. For a line `KEY` of standard input, prints where the key's count is, as `KEY is at
// HOST:PORT`. Ends when standard input does.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.HostInfo;

public class StreamsShapes {
    static final Duration WINDOW = Duration.ofSeconds(10);
    static final Duration ALL = Duration.ofHours(1);

    static KStream<String, String> build(String shape, String prefix, StreamsBuilder builder) {
        KStream<String, String> left = builder.stream(prefix + "-left");
        return switch (shape) {
            case "stateless" -> left
                .filter((key, value) -> !value.endsWith("0"))
                .mapValues(value -> value.toUpperCase(Locale.ROOT));
            case "windows" -> left.groupByKey()
                .windowedBy(TimeWindows.ofSizeWithNoGrace(WINDOW))
                .count()
                .toStream((window, count) -> window.key() + "@" + window.window().start())
                .mapValues(String::valueOf);
            case "join" -> left.join(
                builder.stream(prefix + "-right"),
                (String one, String other) -> one + "/" + other,
                JoinWindows.ofTimeDifferenceWithNoGrace(ALL));
            case "repartition" -> left
                .map((key, value) -> KeyValue.pair("last-" + lastOf(value), value))
                .groupByKey()
                .count(Materialized.as("counts"))
                .toStream()
                .mapValues(String::valueOf);
            case "global" -> left.join(
                builder.<String, String>globalTable(prefix + "-right"),
                (key, value) -> key,
                (one, other) -> one + "/" + other);
            default -> throw new IllegalArgumentException(shape);
        };
    }

    static char lastOf(String value) {
        if (value.equals("fatal")) {
            throw new IllegalStateException("fatal");
        }
        return value.charAt(value.length() - 1);
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        for (String pair : Arrays.copyOfRange(arguments, 2, arguments.length)) {
            String[] parts = pair.split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        String[] shapes = arguments[0].split(",");
        List<KafkaStreams> applications = new ArrayList<>();
        for (String shape : shapes) {
            String prefix = arguments[1];
            if (shapes.length > 1) {
                prefix += "-" + shape;
                settings.put(StreamsConfig.APPLICATION_ID_CONFIG, prefix);
            }
            applications.add(start(shape, prefix, settings));
        }
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in));
        for (String key = asked.readLine(); key != null; key = asked.readLine()) {
            HostInfo host = applications.get(0)
                .queryMetadataForKey("counts", key, Serdes.String().serializer())
                .activeHost();
            System.out.println(key + " is at " + host.host() + ":" + host.port());
        }
        applications.forEach(KafkaStreams::close);
    }

    static KafkaStreams start(String shape, String prefix, Properties settings) {
        StreamsBuilder builder = new StreamsBuilder();
        build(shape, prefix, builder).to(prefix + "-out");
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setStateListener((now, before) -> System.out.println("state " + now));
        streams.setUncaughtExceptionHandler(error -> {
            boolean fatal = false;
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                System.out.println("died " + cause);
                fatal |= "fatal".equals(cause.getMessage());
            }
            return fatal
                ? StreamThreadExceptionResponse.SHUTDOWN_APPLICATION
                : StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        return streams;
    }
}
