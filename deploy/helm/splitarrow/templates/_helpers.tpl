{{- define "splitarrow.name" -}}
{{- if contains "splitarrow" .Release.Name -}}
{{- .Release.Name | trunc 55 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-splitarrow" .Release.Name | trunc 55 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "splitarrow.selector" -}}
app.kubernetes.io/name: splitarrow
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "splitarrow.labels" -}}
{{ include "splitarrow.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "splitarrow.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "splitarrow.name" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "splitarrow.listen" -}}
{{- $tls := ternary "+tls" "" (ne .Values.tls.secretName "") -}}
{{- $listen := list (printf "tcp%s://0.0.0.0:%d" $tls (int .Values.ports.data)) -}}
{{- if .Values.sharedMemory.enabled -}}
{{- $listen = append $listen (printf "shm://%s/data.sock" .Values.sharedMemory.hostPath) -}}
{{- end -}}
{{- toJson $listen -}}
{{- end }}

{{/* The address for readers inside, and those for readers outside, which refer to variables of the pod. */}}
{{- define "splitarrow.inside" -}}
{{- ternary "$(NODE_NAME)" "$(POD_IP)" (eq .Values.advertise "nodeName") -}}
{{- end }}

{{- define "splitarrow.advertise" -}}
{{- $tls := ternary "+tls" "" (ne .Values.tls.secretName "") -}}
{{- $external := .Values.external -}}
{{- $addresses := list (include "splitarrow.inside" .) -}}
{{- if $external.type -}}
{{- $ports := ternary $external.nodePorts .Values.ports (eq $external.type "NodePort") -}}
{{- if not (or $external.host (eq $external.type "NodePort")) -}}
{{- fail (printf "external.type %s: set external.host to the name of the Service for readers" $external.type) -}}
{{- end -}}
{{- $host := default "$(NODE_IP)" $external.host -}}
{{- $addresses = append $addresses (printf "grpc%s=%s:%d" $tls $host (int $ports.control)) -}}
{{- $addresses = append $addresses (printf "tcp%s=%s:%d" $tls $host (int $ports.data)) -}}
{{- end -}}
{{- if or .Values.ingress.enabled .Values.gateway.enabled -}}
{{- $host := ternary .Values.ingress.host .Values.gateway.host .Values.ingress.enabled -}}
{{- $host = required "set the host of the ingress or gateway" $host -}}
{{- $addresses = append $addresses (printf "%s=%s:443" (include "splitarrow.httpScheme" .) $host) -}}
{{- if not $external.type -}}
{{- $addresses = append $addresses (printf "grpc%s=%s:443" $tls $host) -}}
{{- end -}}
{{- end -}}
{{- join "," $addresses -}}
{{- end }}

{{- define "splitarrow.isExternal" -}}
{{- if or .Values.external.type .Values.ingress.enabled .Values.gateway.enabled }}true{{ end -}}
{{- end }}

{{/* Probes present no certificate. Health checks need none, even where other requests do. */}}
{{- define "splitarrow.httpScheme" -}}
{{- ternary "https" "http" (ne .Values.tls.secretName "") -}}
{{- end }}

{{- define "splitarrow.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
  scheme: {{ include "splitarrow.httpScheme" .root | upper }}
{{ toYaml .probe }}
{{- end }}
