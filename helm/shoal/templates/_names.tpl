{{- define "shoal.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}-operator
{{- end }}

{{- define "shoal.labels" -}}
app.kubernetes.io/name: shoal-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "shoal.watchNamespaces" -}}
{{ tpl (toJson .Values.watchNamespaces) . }}
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
{{ include "shoal.consoleSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "shoal.image" -}}
{{- $tag := .image.tag | default .root.Chart.AppVersion -}}
{{- $registry := .image.registry | default .root.Values.image.registry -}}
{{- $separator := ternary "@" ":" (hasPrefix "sha256:" $tag) -}}
{{ with $registry }}{{ . }}/{{ end }}{{ .image.repository }}{{ $separator }}{{ $tag }}
{{- end }}

{{- /* The security context of pods that run as user 1000, unless the platform assigns the user. */}}
{{- define "shoal.podSecurityContext" -}}
runAsNonRoot: true
{{- if not (or (eq .Values.openshift "enabled") (and (eq .Values.openshift "auto") (.Capabilities.APIVersions.Has "security.openshift.io/v1"))) }}
runAsUser: 1000
runAsGroup: 1000
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- end }}
