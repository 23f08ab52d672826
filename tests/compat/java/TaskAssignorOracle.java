// Kafka's StickyTaskAssignor assigns the tasks of random streams groups:
// tests/compat/oracles/test_task_assignor.py starts this.
//
// Lines of standard input, their words separated by blanks:
//   group STANDBY_REPLICAS      a group begins
//   subtopology ID TASKS STATEFUL
//   member ID PROCESS ACTIVE STANDBY
//   assign
// ACTIVE and STANDBY are the tasks of the last target, as ID_PARTITION,... or `-`. Each `assign`
// prints a line for each member, in order of ids, as `ID ACTIVE STANDBY`, and then `done`.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.coordinator.group.api.streams.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.streams.assignor.TopologyDescriber;
import org.apache.kafka.coordinator.group.streams.assignor.AssignmentConfigsImpl;
import org.apache.kafka.coordinator.group.streams.assignor.GroupSpecImpl;
import org.apache.kafka.coordinator.group.streams.assignor.MemberMetadataAndStateImpl;
import org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor;

public class TaskAssignorOracle {
    record Subtopology(int tasks, boolean stateful) { }

    record Topology(TreeMap<String, Subtopology> all) implements TopologyDescriber {
        public List<String> subtopologies() {
            return List.copyOf(all.keySet());
        }

        public int maxNumInputPartitions(String id) {
            return all.get(id).tasks();
        }

        public boolean isStateful(String id) {
            return all.get(id).stateful();
        }
    }

    static Map<String, Set<Integer>> tasks(String word) {
        Map<String, Set<Integer>> found = new HashMap<>();
        if (!word.equals("-")) {
            for (String task : word.split(",")) {
                String[] parts = task.split("_");
                found.computeIfAbsent(parts[0], id -> new HashSet<>()).add(Integer.parseInt(parts[1]));
            }
        }
        return found;
    }

    static String text(Map<String, Set<Integer>> tasks) {
        TreeSet<String> words = new TreeSet<>();
        tasks.forEach((id, partitions) -> partitions.forEach(p -> words.add(id + "_" + p)));
        return words.isEmpty() ? "-" : String.join(",", words);
    }

    public static void main(String[] arguments) throws Exception {
        StickyTaskAssignor assignor = new StickyTaskAssignor();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder output = new StringBuilder();
        Map<String, MemberMetadataAndStateImpl> members = new HashMap<>();
        TreeMap<String, Subtopology> subtopologies = new TreeMap<>();
        int replicas = 0;
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "group" -> {
                    members = new HashMap<>();
                    subtopologies = new TreeMap<>();
                    replicas = Integer.parseInt(words[1]);
                }
                case "subtopology" -> subtopologies.put(
                    words[1],
                    new Subtopology(Integer.parseInt(words[2]), Boolean.parseBoolean(words[3])));
                case "member" -> members.put(words[1], new MemberMetadataAndStateImpl(
                    Optional.empty(), Optional.empty(), words[2], Map.of(), tasks(words[3]),
                    tasks(words[4]), Map.of(), Map.of(), Map.of()));
                default -> {
                    Map<String, MemberAssignment> assigned = assignor.assign(
                        new GroupSpecImpl(members, new AssignmentConfigsImpl(replicas, List.of())),
                        new Topology(subtopologies)).members();
                    new TreeMap<>(assigned).forEach((id, one) -> output.append(id).append(' ')
                        .append(text(one.activeTasks())).append(' ')
                        .append(text(one.standbyTasks())).append('\n'));
                    output.append("done\n");
                }
            }
        }
        System.out.print(output);
    }
}
