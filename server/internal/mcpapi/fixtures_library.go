//go:build fixtures

package mcpapi

import (
	"context"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func addFixtureResources(s *mcp.Server) {
	text := func(body string) mcp.ResourceHandler {
		return func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			return fixtureContents(&mcp.ResourceContents{URI: req.Params.URI, MIMEType: "text/plain", Text: body}), nil
		}
	}
	s.AddResource(&mcp.Resource{
		URI: "test://static-text", Name: "static-text", Description: "A text that never changes.", MIMEType: "text/plain",
	}, text("This is the content of the static text resource."))
	s.AddResource(&mcp.Resource{
		URI: "test://watched-resource", Name: "watched-resource", Description: "A text to subscribe to.", MIMEType: "text/plain",
	}, text("Watched resource content"))
	s.AddResource(&mcp.Resource{
		URI: "test://static-binary", Name: "static-binary", Description: "An image that never changes.", MIMEType: "image/png",
	}, func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return fixtureContents(&mcp.ResourceContents{URI: req.Params.URI, MIMEType: "image/png", Blob: fixtureBytes(fixturePNG)}), nil
	})
	s.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: "test://template/{id}/data", Name: "template", Description: "A resource per id.", MIMEType: "application/json",
	}, func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		id := strings.TrimSuffix(strings.TrimPrefix(req.Params.URI, "test://template/"), "/data")
		return fixtureContents(&mcp.ResourceContents{
			URI: req.Params.URI, MIMEType: "application/json",
			Text: fmt.Sprintf(`{"id": %q, "templateTest": true, "data": %q}`, id, "Data for ID: "+id),
		}), nil
	})
}

func fixtureContents(c *mcp.ResourceContents) *mcp.ReadResourceResult {
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{c}}
}

func addFixturePrompts(s *mcp.Server) {
	say := func(text string) *mcp.PromptMessage {
		return &mcp.PromptMessage{Role: "user", Content: &mcp.TextContent{Text: text}}
	}
	s.AddPrompt(&mcp.Prompt{Name: "test_simple_prompt", Description: "A prompt without arguments."},
		promptOf(say("This is a simple prompt for testing.")))
	s.AddPrompt(&mcp.Prompt{Name: "test_prompt_with_arguments", Description: "A prompt with two arguments.", Arguments: []*mcp.PromptArgument{
		{Name: "arg1", Description: "The first argument.", Required: true},
		{Name: "arg2", Description: "The second argument.", Required: true},
	}}, func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		a := req.Params.Arguments
		return prompt(say(fmt.Sprintf("Prompt with arguments: arg1='%s', arg2='%s'", a["arg1"], a["arg2"]))), nil
	})
	s.AddPrompt(&mcp.Prompt{Name: "test_prompt_with_embedded_resource", Description: "A prompt with a resource in it.", Arguments: []*mcp.PromptArgument{
		{Name: "resourceUri", Description: "The resource's URI.", Required: true},
	}}, func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return prompt(
			&mcp.PromptMessage{Role: "user", Content: fixtureEmbedded(req.Params.Arguments["resourceUri"])},
			say("Please process the embedded resource above."),
		), nil
	})
	s.AddPrompt(&mcp.Prompt{Name: "test_prompt_with_image", Description: "A prompt with an image in it."}, promptOf(
		&mcp.PromptMessage{Role: "user", Content: fixtureImage()}, say("Please analyze the image above.")))
	s.AddPrompt(&mcp.Prompt{Name: "test_input_required_result_prompt", Description: "A prompt that asks the user first."},
		func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			if said := accepted(req.Params.InputResponses, "user_context"); said != nil {
				return prompt(say(fmt.Sprintf("Context: %v", said["context"]))), nil
			}
			return &mcp.GetPromptResult{InputRequests: mcp.InputRequestMap{
				"user_context": askFor("Please provide context for the prompt", "context", "string"),
			}}, nil
		})
}

func prompt(messages ...*mcp.PromptMessage) *mcp.GetPromptResult {
	return &mcp.GetPromptResult{Description: "A prompt for testing", Messages: messages}
}

func promptOf(messages ...*mcp.PromptMessage) mcp.PromptHandler {
	return func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return prompt(messages...), nil
	}
}
