"""Why a place differs: its ops, its lines, and what the causes are tried on."""
