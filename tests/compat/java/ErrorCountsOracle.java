import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.TreeMap;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.Struct;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.protocol.types.Type;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.requests.AbstractResponse;

/**
 * Prints which error codes of a response Kafka counts in its metric ErrorsPerSec. A line has the API's
 * key, a version, and the paths of the fields, each with the times it is counted. Every array has two
 * elements, and every field that ends in error_code has a code of its own.
 */
public final class ErrorCountsOracle {
    private final Map<Short, String> paths = new TreeMap<>();
    private short next = 1;
    private int names = 0;

    public static void main(String[] args) {
        for (ApiKeys api : ApiKeys.values()) {
            Schema[] schemas = api.messageType.responseSchemas();
            for (short version = api.oldestVersion(); version <= api.latestVersion(true); version++) {
                System.out.println(api.id + "\t" + version + "\t"
                    + new ErrorCountsOracle().counted(api, version, schemas[version]));
            }
        }
    }

    private String counted(ApiKeys api, short version, Schema schema) {
        try {
            Struct filled = struct(schema, "");
            ByteBuffer buffer = ByteBuffer.allocate(filled.sizeOf());
            filled.writeTo(buffer);
            buffer.flip();
            AbstractResponse response =
                AbstractResponse.parseResponse(api, new ByteBufferAccessor(buffer), version);
            Map<String, Integer> found = new TreeMap<>();
            response.errorCounts().forEach((error, count) -> {
                if (error != Errors.NONE || count > 0)
                    found.merge(paths.getOrDefault(error.code(), error.name()), count, Integer::sum);
            });
            return String.join(" ", found.entrySet().stream()
                .map(one -> one.getKey() + "=" + one.getValue()).toList());
        } catch (RuntimeException error) {
            return "! " + error;
        }
    }

    private Struct struct(Schema schema, String path) {
        Struct filled = new Struct(schema);
        for (BoundField field : schema.fields())
            filled.set(field, value(field.def.type, path.isEmpty() ? field.def.name : path + "." + field.def.name));
        return filled;
    }

    private Object value(Type type, String path) {
        if (type instanceof Schema nested)
            return struct(nested, path);
        if (type instanceof TaggedFields) {
            NavigableMap<Integer, Object> none = new TreeMap<>();
            return none;
        }
        if (type.isArray()) {
            List<Object> elements = new ArrayList<>();
            short before = next;
            elements.add(value(type.arrayElementType().get(), path));
            next = before;
            elements.add(value(type.arrayElementType().get(), path));
            return elements.toArray();
        }
        return switch (type.toString()) {
            case "INT8" -> (byte) 3;  // A known value for each part of an ACL.
            case "INT16" -> path.endsWith("error_code") ? code(path) : (short) 0;
            case "UINT16" -> 0;
            case "INT32" -> names++;
            case "UINT32", "INT64" -> 0L;
            case "FLOAT64" -> 0.0;
            case "BOOLEAN" -> false;
            case "UUID" -> org.apache.kafka.common.Uuid.ZERO_UUID;
            case "BYTES", "COMPACT_BYTES" -> ByteBuffer.allocate(0);
            // Responses with two equal names or resources are not valid.
            case "STRING", "COMPACT_STRING" -> "name-" + names++;
            case "RECORDS", "COMPACT_RECORDS" -> MemoryRecords.EMPTY;
            default -> null;
        };
    }

    private short code(String path) {
        paths.put(next, path);
        return next++;
    }
}
