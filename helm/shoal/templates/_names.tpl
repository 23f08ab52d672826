{{- define "shoal.name" -}}
{{- $suffix := .Values.nameOverride | default "operator" -}}
{{ .Values.fullnameOverride | default (printf "%s-%s" (.Release.Name | trunc 40 | trimSuffix "-") $suffix) }}
{{- end }}

{{- define "shoal.serviceAccountName" -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) }}
{{- fail "serviceAccount.name is missing: with serviceAccount.create=false, name the ServiceAccount of the operator." }}
{{- end -}}
{{ .Values.serviceAccount.name | default (include "shoal.name" .) }}
{{- end }}

{{- define "shoal.ownLabels" -}}
app.kubernetes.io/name: shoal-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* Labels of the user never replace the chart's own, by which the operator and its Service find the pods. */}}
{{- define "shoal.labels" -}}
{{ merge (include "shoal.ownLabels" . | fromYaml) .Values.commonLabels | toYaml }}
{{- end }}

{{- define "shoal.podLabels" -}}
{{ merge (include "shoal.labels" . | fromYaml) .Values.podLabels | toYaml }}
{{- end }}

{{- /* Annotations of an object, from the root and its own ones, which the common ones never replace. */}}
{{- define "shoal.annotations" -}}
{{- with merge (deepCopy (index . 1)) (index . 0).Values.commonAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "shoal.watchNamespaces" -}}
{{ tpl (toJson .Values.watchNamespaces) . }}
{{- end }}

{{- define "shoal.driverRoleKind" -}}
{{ ternary "Role" "ClusterRole" (not (empty .Values.watchNamespaces)) }}
{{- end }}

{{- define "shoal.selector" -}}
app.kubernetes.io/name: shoal-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The pod of `helm test`, which is none of the operator's. */}}
{{- define "shoal.testSelector" -}}
app.kubernetes.io/name: shoal-operator-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "shoal.consoleSelector" -}}
app.kubernetes.io/name: shoal-console
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "shoal.consoleLabels" -}}
{{ merge (include "shoal.consoleSelector" . | fromYaml) (include "shoal.labels" . | fromYaml) | toYaml }}
{{- end }}

{{- define "shoal.image" -}}
{{- $tag := .image.tag | default .root.Chart.AppVersion -}}
{{- $registry := .image.registry | default .root.Values.image.registry -}}
{{- $separator := ternary "@" ":" (hasPrefix "sha256:" $tag) -}}
{{ with $registry }}{{ . }}/{{ end }}{{ .image.repository }}{{ $separator }}{{ $tag }}
{{- end }}

{{- /* The security context of pods that run as user 1000, unless the platform assigns the user. */}}
{{- define "shoal.podSecurityContext" -}}
{{ mergeOverwrite (include "shoal.ownPodSecurityContext" . | fromYaml) .Values.podSecurityContext | toYaml }}
{{- end }}

{{- define "shoal.ownPodSecurityContext" -}}
runAsNonRoot: true
{{- if not (or (eq .Values.openshift "enabled") (and (eq .Values.openshift "auto") (.Capabilities.APIVersions.Has "security.openshift.io/v1"))) }}
runAsUser: 1000
runAsGroup: 1000
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- end }}

{{- define "shoal.ownContainerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "shoal.containerSecurityContext" -}}
{{ mergeOverwrite (include "shoal.ownContainerSecurityContext" . | fromYaml) .Values.containerSecurityContext | toYaml }}
{{- end }}
