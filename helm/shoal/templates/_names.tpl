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

{{- define "shoal.selector" -}}
app.kubernetes.io/name: shoal-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "shoal.image" -}}
{{- $tag := .image.tag | default .root.Chart.AppVersion -}}
{{- if hasPrefix "sha256:" $tag -}}
{{ .image.repository }}@{{ $tag }}
{{- else -}}
{{ .image.repository }}:{{ $tag }}
{{- end -}}
{{- end }}
